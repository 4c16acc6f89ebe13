// Redis is an embedded Redis for trials: it forgets everything when it ends.
package main

import (
	"flag"
	"log"
	"os"
	"os/signal"

	"github.com/alicebob/miniredis/v2"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:6379", "listen on this `address`")
	flag.Parse()

	server := miniredis.NewMiniRedis()
	if err := server.StartAddr(*addr); err != nil {
		log.Fatal(err)
	}
	log.Printf("redis://%s/0", server.Addr())
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	<-interrupted
}
