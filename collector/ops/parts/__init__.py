"""What operators of several families share; what one family shares lies in that family."""
