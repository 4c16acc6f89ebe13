package websocketmw_test

import (
	"context"
	"fmt"
	"log"
	"net/http"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/websocketmw"
)

// Three sockets for each user.
func ExampleMaxOpen() {
	sockets := websocketmw.MaxOpen(new(core.MemoryStore), "ws", keyfuncs.Context(userKey{}), 3)
	http.Handle("/ws", sockets.Handler(http.HandlerFunc(echo)))
}

// A server that does not answer is an error: the call is made again.
func ExampleGuard_CloseAll_ban() {
	users := core.NewSlots(new(core.MemoryStore), "ws", 3) // over a redisstore, say
	sockets, err := websocketmw.New(websocketmw.Config{Rules: []websocketmw.Rule{{Slots: users, Key: keyfuncs.Context(userKey{})}}})
	if err != nil {
		log.Fatal(err)
	}
	ban := func(ctx context.Context, user string) (err error) {
		for range 3 {
			if _, err = sockets.CloseAll(ctx, users, user, 4003, "banned"); err == nil {
				return nil
			}
		}
		return err
	}
	fmt.Println(ban(context.Background(), "anna"))
	// Output: <nil>
}
