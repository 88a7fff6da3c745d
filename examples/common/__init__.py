"""What the recipes share: options, the stages, how runs are started and counted."""
