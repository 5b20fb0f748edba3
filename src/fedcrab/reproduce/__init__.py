"""The paper's evaluation, item by item, its figures beside ours."""
