"""What a training was made from (manifest), and several trainings side by side (report)."""
