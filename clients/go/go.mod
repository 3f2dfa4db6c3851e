module doorman.example/doorman

go 1.18
