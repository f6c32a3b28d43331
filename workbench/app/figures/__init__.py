"""Figures: tables in, a plotly figure out, no database and no Streamlit."""
