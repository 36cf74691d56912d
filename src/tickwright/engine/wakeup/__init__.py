"""How loops learn of work: turns, notifications, and the connection that receives them."""
