"""What people look at: tables now, plots and pages beside them."""
