"""What every room uses: errors, units, numbers, statistics, the console."""
