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
	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw"
	"github.com/headgate/headgate/websocketmw/gorillaws"
)

const userField = "X-User"

// Settings are what all servers of a test have in common.
type settings struct {
	redis   string
	referee string
	ttl     time.Duration
	limit   int
	local   bool // grants without Redis, and sheds what was too many; else neither
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
	shared.Observer = &core.Observer{SlotsLost: func(int64) { honest.tell("died") }}
	if honest.Noticer, err = redisstore.Open(&redis.UniversalOptions{Addrs: []string{s.redis}}, shared); err != nil {
		return err
	}
	slots, err := core.NewSlots(honest, "ws", int64(s.limit))
	if err != nil {
		return err
	}
	c := websocketmw.Config{Rules: []nethttp.Rule{{Slots: slots, Key: keyfuncs.Header(userField)}}}
	if s.local {
		c.OnExcess = websocketmw.Shed
	}
	guard, err := websocketmw.New(c)
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
	fmt.Println(guard.Len())
	return nil
}

func mount(guard *websocketmw.Guard, kind int) http.Handler {
	echo := gorillaws.Upgrade(nil, echoGorilla)
	if kind%2 == 1 {
		echo = http.HandlerFunc(echoCoder)
	}
	if kind < kinds/2 {
		return guard.Handler(echo)
	}
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.GET("/", ginmw.Use(guard), gin.WrapH(echo))
	return r
}

func echoGorilla(c *gorilla.Conn, _ *http.Request) {
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
