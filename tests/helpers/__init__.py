"""What tests share, but for fixtures: small models, formulas, servers, commands."""
