"""What the experiment on Jacobian penalties is made of: studies, training, claims, figures."""
