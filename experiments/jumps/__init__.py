"""Parts of the Ehrenfest experiment: jump processes on integers and what drives them."""
