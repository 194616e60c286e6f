"""Plans: the plan language and its parser, playbooks (templates filled from the request) and model-written plans.

Invariant: whatever wrote a plan, it becomes a DAG only through `language.parse`. Nothing here runs a step.
"""
