package main

import (
	"cmp"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/gorilla/websocket"
)

// users and plans by token. Real tokens are long and random, so that they cannot be guessed.
var (
	users = map[string]string{"token-of-anna": "anna", "token-of-ben": "ben"}
	plans = map[string]string{"token-of-anna": "gold"}
)

// authenticate finds out who the user is. Other requests are charged to their address.
func authenticate(c *gin.Context) {
	token, _ := strings.CutPrefix(c.GetHeader("Authorization"), "Bearer ")
	c.Set("user", users[token])
	c.Set("plan", plans[token])
}

func hello(c *gin.Context) {
	c.String(http.StatusOK, "hello, %s\n", cmp.Or(c.GetString("user"), "stranger"))
}

func login(c *gin.Context) {
	if c.PostForm("password") != "open sesame" {
		c.AbortWithStatus(http.StatusUnauthorized)
		return
	}
	c.String(http.StatusOK, "come in\n")
}

// echo sends back what the client sends.
func echo(c *gin.Context) {
	conn, err := (&websocket.Upgrader{}).Upgrade(c.Writer, c.Request, nil)
	if err != nil {
		return // Upgrade has answered
	}
	defer conn.Close()
	for {
		kind, message, err := conn.ReadMessage()
		if err != nil || conn.WriteMessage(kind, message) != nil {
			return
		}
	}
}

func index(c *gin.Context) {
	c.String(http.StatusOK, `An API with Gin. In any minute, /api/hello admits 10 requests of each user, 100 of one with the
gold plan, and 10 of each address that has not signed in; /login 3 wrong passwords of an address
in any hour; /api/echo 3 open WebSockets of each user. Try

	curl -i http://%[1]s/api/hello
	curl -i -H 'Authorization: Bearer token-of-anna' http://%[1]s/api/hello
	curl -i -d 'password=open sesame' http://%[1]s/login
`, c.Request.Host)
}
