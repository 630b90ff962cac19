"""What the forecasting experiments are made of: models, training, claims, figures, `predict`."""
