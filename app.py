"""`streamlit run app.py` is the web app, for a checkout that is not installed."""

from workbench.view.app import main

main()
