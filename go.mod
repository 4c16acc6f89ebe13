module github.com/headgate/headgate

go 1.25.0

require (
	github.com/alicebob/miniredis/v2 v2.30.5
	github.com/dunglas/httpsfv v1.1.0
	github.com/redis/go-redis/v9 v9.19.0
	pgregory.net/rapid v1.2.0
)

require (
	github.com/alicebob/gopher-json v0.0.0-20200520072559-a9ecdc9d1d3a // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/yuin/gopher-lua v1.1.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
)
