"""Campaigns: producer – database – consumer; who of an audience is selected, and one action for each."""
