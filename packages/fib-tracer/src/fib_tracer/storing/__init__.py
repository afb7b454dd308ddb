"""What happens to copies: named by their content, written, acknowledged."""
