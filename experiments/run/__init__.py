"""What every study uses: options, the run folder, seeds, provenance, progress."""
