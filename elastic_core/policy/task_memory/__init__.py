"""What jobs of a task have shown, kept in `Plan.state` for the jobs of it that come after: the one store of policies.
May import `domain` and `predict`; policies import it. `measurements` and `profiles` say why they are two records.
"""
