"""Calls that consumers hand over to workers in other languages: polls of trackers, tasks of entities, chunks.

::

    consumer ──hand over──▶ remote_calls ──claim──▶ remote worker ──result──▶ remote_calls ──take──▶ consumer
      owns the work             a row a call          owns the call                           writes the effect

The consumer keeps its claim, its permit and its retries as for a function of its own program (:mod:`.calls`). The
worker protocol claims and ends calls beside jobs (:mod:`.work`). See docs/adr/0045.
"""
