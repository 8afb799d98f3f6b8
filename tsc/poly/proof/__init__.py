"""What is proved of a schedule and of its loops: dataflow, instances, order, cells and reads, at all sizes."""
