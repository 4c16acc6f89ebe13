module github.com/headgate/headgate/contrib/rpc

go 1.25.0

require (
	github.com/headgate/headgate v0.0.0
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260706201446-f0a921348800
	google.golang.org/protobuf v1.36.11
)

replace github.com/headgate/headgate => ../..
