module example.org/tailrace

go 1.21
