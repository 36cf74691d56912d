"""What every command uses: the gateway, output, options and streams of files."""
