"""The web app: reads the database and draws it, follows live runs."""
