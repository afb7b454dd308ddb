"""HTTP API and pages. This process never imports a solution, nor torch; it only reads and writes the database."""
