"""Where curves are sent: TensorBoard's event files, MLflow, and folders that W&B uploads."""
