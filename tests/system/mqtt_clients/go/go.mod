module tailrace.test/clients

go 1.26.8

require github.com/eclipse/paho.golang v0.23.0
