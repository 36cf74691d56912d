module github.com/tickwright/tickwright/clients/go

go 1.19
