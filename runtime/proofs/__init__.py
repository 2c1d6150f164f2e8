"""`specexport verify`: is the output the target's own?"""
