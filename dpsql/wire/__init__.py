"""The PostgreSQL wire: any PostgreSQL client can connect to the gateway."""
