"""What users write: tensors and scalars over named axes, assembled into Programs."""
