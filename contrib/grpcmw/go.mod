module github.com/headgate/headgate/contrib/grpcmw

go 1.25.0

require (
	github.com/headgate/headgate v0.0.0
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260706201446-f0a921348800
	google.golang.org/grpc v1.84.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/redis/go-redis/v9 v9.22.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	google.golang.org/protobuf v1.36.11 // indirect
)

require (
	github.com/headgate/headgate/contrib/rpc v0.0.0
	golang.org/x/net v0.57.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/text v0.40.0 // indirect
)

replace github.com/headgate/headgate => ../..

replace github.com/headgate/headgate/contrib/rpc => ../rpc
