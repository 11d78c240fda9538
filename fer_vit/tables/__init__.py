"""Reading of tables of users and other programs."""
