from spikegcl.cli import main

main()
