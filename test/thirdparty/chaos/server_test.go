package chaos

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"time"

	coder "github.com/coder/websocket"
	"github.com/gin-gonic/gin"
	gorilla "github.com/gorilla/websocket"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/internal/store"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/websocketmw"
)

const userField = "X-User"

// Settings are what all servers of a test have in common.
type settings struct {
	redis   string
	referee string
	ttl     time.Duration
	limit   int
	local   bool // grants without Redis
}

func (s *settings) args(name string, kind int) []string {
	return []string{s.redis, s.referee, s.ttl.String(), strconv.Itoa(s.limit), strconv.FormatBool(s.local), name, strconv.Itoa(kind)}
}

func (s *settings) config() redisstore.Config {
	if s.local {
		return redisstore.Config{SlotTTL: s.ttl}
	}
	return redisstore.Config{SlotTTL: s.ttl, Failure: redisstore.FailClosed}
}

// kinds are the servers: the number of one chooses a library and a framework.
const kinds = 4

// serve is the process of a server, which echoes messages. Its last arguments are its name and
// its kind. It prints its address and, once it is to end and has ended in order, how many
// sockets it has left.
func serve(args []string) error {
	s := settings{redis: args[0], referee: args[1]}
	var err error
	if s.ttl, err = time.ParseDuration(args[2]); err != nil {
		return err
	}
	if s.limit, err = strconv.Atoi(args[3]); err != nil {
		return err
	}
	s.local = args[4] == "true"
	kind, err := strconv.Atoi(args[6])
	if err != nil {
		return err
	}
	honest, err := newRefereed(s.referee, args[5])
	if err != nil {
		return err
	}
	shared := s.config()
	losses := new(core.Observer) // of which only the sealed part learns
	losses.Backend(&store.Observer{
		SlotsRestated: func(int) { honest.tell("died") }, // also if it has released all that it held before it knew
	})
	shared.Observers = []*core.Observer{losses}
	opened, err := redisstore.Open("redis://"+s.redis, shared)
	if err != nil {
		return err
	}
	honest.Registry = opened.Backend().Slots
	slots := core.NewSlots(honest, "ws", int64(s.limit))
	guard, err := websocketmw.New(websocketmw.Config{Rules: []websocketmw.Rule{{Slots: slots, Key: keyfuncs.Header(userField)}}})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mount(guard, kind), ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	fmt.Println(listener.Addr())
	bufio.NewScanner(os.Stdin).Scan() // until it is told to end
	if err := guard.Shutdown(context.Background()); err != nil {
		return err
	}
	if err := slots.Close(context.Background()); err != nil {
		return err
	}
	fmt.Println(honest.held.Load())
	return nil
}

func mount(guard *websocketmw.Guard, kind int) http.Handler {
	echo := http.HandlerFunc(echoGorilla)
	if kind%2 == 1 {
		echo = echoCoder
	}
	if kind < kinds/2 {
		return guard.Handler(echo)
	}
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.GET("/", ginmw.Middleware(guard), gin.WrapH(echo))
	return r
}

func echoGorilla(w http.ResponseWriter, r *http.Request) {
	c, err := new(gorilla.Upgrader).Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer c.Close()
	for {
		kind, message, err := c.ReadMessage()
		if err != nil || c.WriteMessage(kind, message) != nil {
			return
		}
	}
}

func echoCoder(w http.ResponseWriter, r *http.Request) {
	c, err := coder.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer c.CloseNow()
	ctx := context.Background()
	for {
		kind, message, err := c.Read(ctx)
		if err != nil || c.Write(ctx, kind, message) != nil {
			return
		}
	}
}

// A burner is a process that keeps a processor busy until it is killed.
func burner([]string) error {
	for n := 0; ; n++ {
		runtime.KeepAlive(n)
	}
}
