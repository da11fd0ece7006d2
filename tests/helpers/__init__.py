"""What tests share, by topic; tests and runners import it as `helpers`."""
