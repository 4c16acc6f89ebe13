package main

import (
	"cmp"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/gorilla/websocket"

	"github.com/headgate/headgate/websocketmw/gorillaws"
)

// A user is what authenticate stores. Its String is its key.
type user struct {
	name string
	gold bool
}

func (u user) String() string { return u.name }

// users by token. Real tokens are long and random, so that they cannot be guessed.
var users = map[string]user{"token-of-anna": {name: "anna", gold: true}, "token-of-ben": {name: "ben"}}

// authenticate finds out who the user is. Other requests are charged to their address.
func authenticate(c *gin.Context) {
	token, _ := strings.CutPrefix(c.GetHeader("Authorization"), "Bearer ")
	if u, ok := users[token]; ok {
		c.Set("user", u)
	}
}

func hello(c *gin.Context) {
	u, _ := c.Value("user").(user)
	c.String(http.StatusOK, "hello, %s\n", cmp.Or(u.name, "stranger"))
}

func login(c *gin.Context) {
	if c.PostForm("password") != "open sesame" {
		c.AbortWithStatus(http.StatusUnauthorized)
		return
	}
	c.String(http.StatusOK, "come in\n")
}

// echo sends back what the client sends.
var echo = gorillaws.Upgrade(nil, func(conn *websocket.Conn, _ *http.Request) {
	for {
		kind, message, err := conn.ReadMessage()
		if err != nil {
			return
		}
		if err := conn.WriteMessage(kind, message); err != nil {
			return
		}
	}
})

func index(c *gin.Context) {
	c.String(http.StatusOK, `An API with Gin. In any minute, /api/hello admits 10 requests of each user, 100 of one with the
gold plan, and 10 of each address that has not signed in; /login 3 wrong passwords of an address
in any hour; /api/echo 3 open WebSockets of each user. Try

	curl -i http://%[1]s/api/hello
	curl -i -H 'Authorization: Bearer token-of-anna' http://%[1]s/api/hello
	curl -i -d 'password=open sesame' http://%[1]s/login
`, c.Request.Host)
}
