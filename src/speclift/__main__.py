from speclift.cli.main import main

main()
