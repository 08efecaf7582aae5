"""How customers greet, thank and ask what needs no tool."""

from __future__ import annotations

from .grammar import Pool

SMALL_TALK_PHRASES: dict[str, Pool] = {
    "greeting": Pool(
        (
            "(Hello|Hi|Hey)(| there|, support)(.|!|?)",
            "Good (morning|afternoon|evening|day)(.|!)",
            "(Anyone there|Is anyone there)?",
            "(Are you there|Is this the support)?",
        ),
        ("Hello support, are you there?", "Hi, is anyone there?"),
    ),
    "thanks": Pool(
        (
            "(Thanks|Thank you|Many thanks)(.|!| a lot.| so much.)",
            "(Thanks|Thank you) for your help.",
            "(Great|Perfect|Good), (thanks|thank you)(.|!)",
            "That (was|is) (great|very kind|all I needed)(.|, thanks.)",
        ),
        ("Great, many thanks for your help!", "Perfect, that is very kind, thank you."),
    ),
    "hours": Pool(
        (
            "(When|What days|What time) (are|is) (you|the shop) open?",
            "What are your (opening |)hours?",
            "(Until when|How long) are you open?",
            "(Are you|Is the shop) open (on Saturday|on Sunday|tomorrow|now)?",
            "(Tell me|I need) your opening (hours|times).",
        ),
        ("Can you tell me when the shop is open?", "What time are you open on Saturday?"),
    ),
    "phone": Pool(
        (
            "What is your (phone|telephone) number?",
            "(Can|Could) I call you(| on the phone)?",
            "(How|Where) can I (call|phone) you?",
            "(Do you have|Is there) a (phone|telephone) number?",
            "(Give|Tell) me your (phone |telephone |)number.",
        ),
        ("Can you tell me your phone number?", "Is there a number where I can call you?"),
    ),
    "abilities": Pool(
        (
            "What can you do(| for me)?",
            "(How|With what) can you help(| me)?",
            "(What|Which) things can I ask you?",
            "What are you (for|able to do)?",
            "(Tell me|Show me) what you can do.",
        ),
        ("Can you tell me what things you can do?", "With what are you able to help me?"),
    ),
    "shop_name": Pool(
        (
            "(What|Which) shop is this?",
            "What is (the name of your shop|your shop called)?",
            "(Who are you|Who am I talking to)?",
            "What is this shop called?",
            "(Is this an online shop|What kind of shop is this)?",
        ),
        ("Can you tell me the name of this shop?", "Who are you, which shop is this?"),
    ),
}
