module github.com/headgate/headgate/contrib/rpc

go 1.25.0

require github.com/headgate/headgate v0.0.0

replace github.com/headgate/headgate => ../..
