"""Steps of the migrations, oldest first."""
