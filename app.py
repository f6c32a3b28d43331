"""`streamlit run app.py` is the web app, for a checkout that is not installed."""

from sorl.app.main import main

main()
