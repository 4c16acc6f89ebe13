module github.com/headgate/headgate/internal/rpctest

go 1.25.0

require (
	connectrpc.com/connect v1.20.0
	github.com/grpc-ecosystem/grpc-gateway/v2 v2.30.0
	github.com/headgate/headgate v0.0.0
	github.com/headgate/headgate/connectmw v0.0.0
	github.com/headgate/headgate/grpcmw v0.0.0
	github.com/redis/go-redis/v9 v9.22.0
	google.golang.org/grpc v1.84.0
	google.golang.org/protobuf v1.36.11
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	golang.org/x/net v0.57.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/text v0.40.0 // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20260803160001-6ac0973c030d // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260803160001-6ac0973c030d // indirect
)

replace github.com/headgate/headgate => ../..

replace github.com/headgate/headgate/grpcmw => ../../grpcmw

replace github.com/headgate/headgate/connectmw => ../../connectmw
