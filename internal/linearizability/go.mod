module github.com/headgate/headgate/internal/linearizability

go 1.26

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/headgate/headgate v0.0.0
	github.com/redis/go-redis/v9 v9.22.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace github.com/headgate/headgate => ../../
