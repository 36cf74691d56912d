"""Fixtures: an API with campaigns."""

from collections.abc import AsyncIterator

import pytest

from kit.campaigns import CampaignApi, campaign_api


@pytest.fixture
async def campaigns(database_url: str) -> AsyncIterator[CampaignApi]:
    """A running API on a fresh database."""
    async with campaign_api(database_url) as running:
        yield running
