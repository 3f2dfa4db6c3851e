module doorman.example/client

go 1.18
