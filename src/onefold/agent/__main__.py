"""`python3 -m onefold.agent`, and what the packed agent runs."""

from onefold.agent.program import main

main()
